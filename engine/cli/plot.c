#include "engine/cli/plot.h"

#include <math.h>
#include <stdio.h>

#include "vmm/base/out.h"

/* Of the drawing, in its own units; the legend stands between the axes and the right edge. */
enum {
    LEFT = 64,
    TOP = 44,
    AXIS_WIDTH = 560,
    AXIS_HEIGHT = 360,
    BOTTOM = 56,
    LEGEND_WIDTH = 200,
    LEGEND_LINE = 20,
    TICKS = 6
};

/* Colours that people with any kind of sight can distinguish; lines beyond them differ by dashes.
 */
static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                       "#b8860b", "#56b4e9", "#7f3c8d", "#555555" };
static const char *const dashes[] = { "", "8 3", "3 3", "12 3 3 3" };

#define COLOURS (sizeof(colours) / sizeof(colours[0]))
#define DASHES (sizeof(dashes) / sizeof(dashes[0]))

struct axes {
    FILE *file;
    double x_step, y_step, x_end, y_end;
};

/* Text between tags: what XML gives a meaning is escaped, what it does not allow is '?'. */
static void put_text(FILE *file, const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        switch (*at) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        default: fputc(*at >= ' ' && *at <= '~' ? *at : '?', file); break;
        }
    }
}

/* A round step that divides 0..max into at most TICKS parts. */
static double choose_step(double max)
{
    const double power = pow(10, floor(log10(max / TICKS)));

    for (double factor = 1; factor < 10; factor = factor < 2 ? 2 : factor < 5 ? 5 : 10) {
        if (factor * power * TICKS >= max)
            return factor * power;
    }
    return 10 * power;
}

static double place_x(const struct axes *axes, double x)
{
    return LEFT + AXIS_WIDTH * x / axes->x_end;
}

static double place_y(const struct axes *axes, double y)
{
    return TOP + AXIS_HEIGHT * (1 - y / axes->y_end);
}

static void put_label(FILE *file, double x, double y, const char *more, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, more);
    put_text(file, text);
    fputs("</text>\n", file);
}

static void put_axes(const struct axes *axes, const struct mp_plot *plot)
{
    const double bottom = TOP + AXIS_HEIGHT, right = LEFT + AXIS_WIDTH;
    char number[32], rotated[96];

    for (unsigned i = 0; i * axes->x_step <= axes->x_end * 1.0001; i++) {
        const double x = place_x(axes, i * axes->x_step);

        fprintf(axes->file, "<path class=\"grid\" d=\"M%.1f %dV%.1f\"/>\n", x, TOP, bottom);
        snprintf(number, sizeof(number), "%g", i * axes->x_step);
        put_label(axes->file, x, bottom + 18, " text-anchor=\"middle\"", number);
    }
    for (unsigned i = 0; i * axes->y_step <= axes->y_end * 1.0001; i++) {
        const double y = place_y(axes, i * axes->y_step);

        fprintf(axes->file, "<path class=\"grid\" d=\"M%d %.1fH%.1f\"/>\n", LEFT, y, right);
        snprintf(number, sizeof(number), "%g", i * axes->y_step);
        put_label(axes->file, LEFT - 8, y + 4, " text-anchor=\"end\"", number);
    }
    fprintf(axes->file, "<path class=\"axis\" d=\"M%d %dV%.1fH%.1f\"/>\n", LEFT, TOP, bottom,
            right);
    put_label(axes->file, LEFT + AXIS_WIDTH / 2, bottom + 42, " text-anchor=\"middle\"",
              plot->x_label);
    snprintf(rotated, sizeof(rotated), " text-anchor=\"middle\" transform=\"rotate(-90 18 %d)\"",
             TOP + AXIS_HEIGHT / 2);
    put_label(axes->file, 18, TOP + AXIS_HEIGHT / 2, rotated, plot->y_label);
    put_label(axes->file, LEFT, 26, " class=\"title\"", plot->title);
}

/* The line's look, as attributes. */
static void put_style(FILE *file, const struct mp_plot_series *series, size_t i)
{
    const char *dash = series->dashed ? "2 4" : dashes[i / COLOURS % DASHES];

    fprintf(file, " stroke=\"%s\"", series->dashed ? "#000000" : colours[i % COLOURS]);
    if (*dash != '\0')
        fprintf(file, " stroke-dasharray=\"%s\"", dash);
}

static void put_series(const struct axes *axes, const struct mp_plot_series *series, size_t i)
{
    const double legend_x = LEFT + AXIS_WIDTH + 16;
    const double legend_y = TOP + 8 + (double)(i * LEGEND_LINE);

    if (series->count > 0) {
        fputs("<path class=\"line\" d=\"", axes->file);
        for (size_t p = 0; p < series->count; p++)
            fprintf(axes->file, "%c%.1f %.1f", p == 0 ? 'M' : 'L',
                    place_x(axes, series->points[p].x), place_y(axes, series->points[p].y));
        fputs("\"", axes->file);
        put_style(axes->file, series, i);
        fputs("/>\n", axes->file);
    }
    for (size_t p = 0; p < series->count && !series->dashed; p++)
        fprintf(axes->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                place_x(axes, series->points[p].x), place_y(axes, series->points[p].y),
                colours[i % COLOURS]);
    fprintf(axes->file, "<path class=\"line\" d=\"M%.1f %.1fh28\"", legend_x, legend_y);
    put_style(axes->file, series, i);
    fputs("/>\n", axes->file);
    put_label(axes->file, legend_x + 36, legend_y + 4, "", series->name);
}

enum mp_status mp_plot_write(const struct mp_plot *plot, const char *path)
{
    const int legend = TOP + 8 + (int)plot->count * LEGEND_LINE;
    const int height = TOP + AXIS_HEIGHT + BOTTOM;
    const int width = LEFT + AXIS_WIDTH + LEGEND_WIDTH;
    struct mp_out out;
    struct axes axes;
    enum mp_status status = mp_out_open(&out, path);

    if (status != MP_OK)
        return status;
    axes = (struct axes){ .file = out.file,
                          .x_step = choose_step(plot->x_max),
                          .y_step = choose_step(plot->y_max) };
    axes.x_end = axes.x_step * ceil(plot->x_max / axes.x_step);
    axes.y_end = axes.y_step * ceil(plot->y_max / axes.y_step);
    fprintf(out.file,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\">\n"
            "<style>text{font:13px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}"
            ".grid{stroke:#ddd}.axis{stroke:#222;fill:none}.line{fill:none;stroke-width:2}"
            "</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            width, legend > height ? legend : height, width, legend > height ? legend : height);
    put_axes(&axes, plot);
    for (size_t i = 0; i < plot->count; i++)
        put_series(&axes, &plot->series[i], i);
    fputs("</svg>\n", out.file);
    return mp_out_commit(&out);
}
