/* Speed and width of a PCI device's link, from sysfs. Measures nothing. */
#include "vmm/topo/pci_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a file of the device; empty where it cannot be read. */
static void read_line(const char *root, const char *pci, const char *name, char *line, int bytes)
{
    char path[512];
    FILE *file;

    line[0] = '\0';
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/%s", root, pci, name);
    file = fopen(path, "re");
    if (file == NULL)
        return;
    if (fgets(line, bytes, file) == NULL)
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(file);
}

void mp_pci_link_read(const char *root, const char *pci, struct mp_pci_link *link_p)
{
    char text[32];

    read_line(root, pci, "current_link_speed", link_p->speed, sizeof(link_p->speed));
    read_line(root, pci, "current_link_width", text, sizeof(text));
    link_p->width = (unsigned)strtoul(text, NULL, 10);
    read_line(root, pci, "numa_node", text, sizeof(text));
    link_p->numa_node = text[0] != '\0' ? (int)strtol(text, NULL, 10) : -1;
}
