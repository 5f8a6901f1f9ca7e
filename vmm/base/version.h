#ifndef MP_BASE_VERSION_H
#define MP_BASE_VERSION_H

/* The project's version, as "1.2.3". One file knows it, so that a new one does not compile all. */
extern const char mp_version[];

#endif
