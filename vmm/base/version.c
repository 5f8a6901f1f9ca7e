/* The version that CMakeLists.txt gives. */
#include "vmm/base/version.h"

const char mp_version[] = MP_VERSION;
