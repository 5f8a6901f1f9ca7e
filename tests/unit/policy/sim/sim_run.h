#ifndef MP_TESTS_SIM_RUN_H
#define MP_TESTS_SIM_RUN_H

/* Descriptions of a small machine and model, and a simulation of them. */

#define WITHOUT_LOADS                                                                     \
    "link_gbps 1\ncopy_us 1\ndevice_gbps 1\ndevice_gflops 1\ndevice_gib 1\nlaunch_us 1\n" \
    "expert_us 10\nlayer_us 100\nstep_us 1000\n"
#define MACHINE WITHOUT_LOADS "load_us 500\n"
#define MODEL                                                                            \
    "layers 1\nexperts 4\ntop_k 4\nhidden 64\nexpert_ffn 64\nvocabulary 8\nkv_bytes 1\n" \
    "attention_params 1\n"

#endif
