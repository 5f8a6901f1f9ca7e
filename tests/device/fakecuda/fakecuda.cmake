include(tests/device/simt/simt.cmake)

# The driver without a device; see fakecuda.h. Tests that want it are run with its folder in
# LD_LIBRARY_PATH. -Bsymbolic: its calls to itself must not go to an interposer.
add_library(fakecuda SHARED
    tests/device/fakecuda/access.c
    tests/device/fakecuda/alloc.c
    tests/device/fakecuda/control.c
    tests/device/fakecuda/device.c
    tests/device/fakecuda/event.c
    tests/device/fakecuda/fault.c
    tests/device/fakecuda/graph.c
    tests/device/fakecuda/lookup.c
    tests/device/fakecuda/memory.c
    tests/device/fakecuda/module.c
    tests/device/fakecuda/objects.c
    tests/device/fakecuda/profile.c
    tests/device/fakecuda/regions.c
    tests/device/fakecuda/shared.c
    tests/device/fakecuda/state.c
    tests/device/fakecuda/streams.c
    tests/device/fakecuda/transfer.c
    tests/device/fakecuda/visible.c
    tests/device/fakecuda/worker.c)
set_target_properties(fakecuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1 C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecuda)
target_link_libraries(fakecuda PRIVATE mp_options mp_simt Threads::Threads)
target_link_options(fakecuda PRIVATE -Wl,-Bsymbolic,-z,nodelete)

# mp_fake_cuda(test [variant ...]): this test, or these variants of it, load it. Its device is in no
# slot of this machine, whose slots hwloc need not read: where PCI is emulated, that takes longer than
# the whole rest of a small run.
function(mp_fake_cuda test)
    string(REPLACE "/" "_" target ${test})
    add_dependencies(${target} fakecuda)
    set(names ${test})
    if(ARGN)
        list(TRANSFORM ARGN PREPEND "${test}:" OUTPUT_VARIABLE names)
    endif()
    set_property(TEST ${names} APPEND PROPERTY ENVIRONMENT
        LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda HWLOC_COMPONENTS=-pci,-linuxio)
endfunction()
