#ifndef MP_PCI_LINK_H
#define MP_PCI_LINK_H

#include <stdbool.h>

/*
 * How a PCI device is connected, as reported by the kernel.
 */
struct mp_pci_link {
    char speed[32]; /* of one lane now: "16.0 GT/s PCIe"; empty: not known */
    unsigned width; /* lanes now; 0: not known */
    int numa_node;  /* -1: none, or not known */
};

/* `pci`: "0000:17:00.0". `root`: "" for this machine, or a folder that holds a copy of /sys. Values
 * that cannot be read are unknown. */
void mp_pci_link_read(const char *root, const char *pci, struct mp_pci_link *link_p);

#endif
