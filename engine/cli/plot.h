#ifndef MP_PLOT_H
#define MP_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "vmm/base/status.h"

/*
 * A chart of lines as an SVG file: axes with round numbers, one line per series, a legend to the
 * right. Whatever a text holds, the file is well-formed XML.
 *
 * Thread safety: none needed; nothing is kept.
 */
struct mp_plot_point {
    double x, y; /* finite */
};

struct mp_plot_series {
    const char *name;
    bool dashed; /* a bound rather than a measurement */
    const struct mp_plot_point *points;
    size_t count; /* in ascending order of x */
};

struct mp_plot {
    const char *title, *x_label, *y_label;
    double x_max, y_max; /* > 0: the axes go from 0 to here or a little further */
    const struct mp_plot_series *series;
    size_t count;
};

/* MP_ERR_IO as mp_out_open() and mp_out_commit() say. */
enum mp_status mp_plot_write(const struct mp_plot *plot, const char *path) MP_MUST_CHECK;

#endif
