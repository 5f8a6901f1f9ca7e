/*
 * How the kernel says a PCI device is connected, from made-up copies of its files.
 */
#include "vmm/topo/pci_link.h"

#include <string.h>
#include <sys/stat.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define PCI "0000:17:00.0"

static void add(const char *name, const char *text)
{
    static const char *const folders[] = { "/sys", "/sys/bus", "/sys/bus/pci",
                                           "/sys/bus/pci/devices", ("/sys/bus/pci/devices/" PCI) };
    char path[4400];
    FILE *file;

    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", test_tmpdir(), folders[i]);
        (void)mkdir(path, 0700);
    }
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/%s", test_tmpdir(), PCI, name);
    file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

static struct mp_pci_link read_link(const char *pci)
{
    struct mp_pci_link link;

    memset(&link, 0x5a, sizeof(link));
    mp_pci_link_read(test_tmpdir(), pci, &link);
    return link;
}

static void what_is_not_there_is_not_known(void)
{
    const struct mp_pci_link link = read_link("0000:99:00.0");

    CHECK_STR(link.speed, "");
    CHECK_EQ(link.width, 0);
    CHECK_EQ(link.numa_node, -1);
}

static void the_kernels_files_are_read(void)
{
    struct mp_pci_link link;

    add("current_link_speed", "16.0 GT/s PCIe\n");
    add("current_link_width", "16\n");
    link = read_link(PCI);
    CHECK_STR(link.speed, "16.0 GT/s PCIe");
    CHECK_EQ(link.width, 16);
    CHECK_EQ(link.numa_node, -1); /* no such file */
    add("numa_node", "1\n");
    CHECK_EQ(read_link(PCI).numa_node, 1);
    add("numa_node", "-1\n");
    CHECK_EQ(read_link(PCI).numa_node, -1);
}

static void odd_files_do_no_harm(void)
{
    struct mp_pci_link link;

    add("current_link_speed", "a line that is much longer than there is room for in a link\n");
    add("current_link_width", "");
    add("numa_node", "\n");
    link = read_link(PCI);
    CHECK_EQ(strlen(link.speed), sizeof(link.speed) - 1);
    CHECK_EQ(link.width, 0);
    CHECK_EQ(link.numa_node, -1);
    add("current_link_speed", "Unknown\n"); /* as it says of some bridges */
    CHECK_STR(read_link(PCI).speed, "Unknown");
}

int main(void)
{
    RUN(what_is_not_there_is_not_known);
    RUN(the_kernels_files_are_read);
    RUN(odd_files_do_no_harm);
    return 0;
}
