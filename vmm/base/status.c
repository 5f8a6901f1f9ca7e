/* Names of statuses. */
#include "vmm/base/status.h"

const char *mp_status_str(enum mp_status status)
{
    switch (status) {
#define X(name, value, exit_code, text) \
    case MP_##name: return text;
        MP_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

int mp_status_exit_code(enum mp_status status)
{
    switch (status) {
#define X(name, value, exit_code, text) \
    case MP_##name: return exit_code;
        MP_STATUS_MAP(X)
#undef X
    }
    return 70;
}
