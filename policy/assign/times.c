/*
 * The order in which DALI's assignments take experts: those whose times on the two sides differ
 * most come first. The times themselves are in times.h.
 */
#include "policy/assign/times.h"

void mp_assign_sort_by_difference(struct mp_sorter *sorter, const struct mp_assign_facts *facts)
{
    for (uint32_t i = 0; i < facts->count; i++) {
        const uint64_t device_ns = mp_assign_home_ns(facts, i);
        const uint64_t cpu_ns = mp_assign_helper_ns(facts->costs, facts->tokens[i]);

        sorter->key[i] = device_ns > cpu_ns ? device_ns - cpu_ns : cpu_ns - device_ns;
    }
    mp_sorter_sort(sorter->order, facts->count, sorter->key);
}
