include(tests/simt/simt.cmake)

# The driver without a device; see fakecuda.h. Tests that want it are run with its folder in
# LD_LIBRARY_PATH. -Bsymbolic: its calls to itself must not go to an interposer.
add_library(fakecuda SHARED
    tests/fakecuda/access.c
    tests/fakecuda/alloc.c
    tests/fakecuda/control.c
    tests/fakecuda/device.c
    tests/fakecuda/event.c
    tests/fakecuda/fault.c
    tests/fakecuda/graph.c
    tests/fakecuda/memory.c
    tests/fakecuda/module.c
    tests/fakecuda/objects.c
    tests/fakecuda/profile.c
    tests/fakecuda/regions.c
    tests/fakecuda/shared.c
    tests/fakecuda/state.c
    tests/fakecuda/streams.c
    tests/fakecuda/transfer.c
    tests/fakecuda/visible.c
    tests/fakecuda/worker.c)
set_target_properties(fakecuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1 C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecuda)
target_link_libraries(fakecuda PRIVATE mp_options mp_simt Threads::Threads)
target_link_options(fakecuda PRIVATE -Wl,-Bsymbolic,-z,nodelete)

# mp_fake_cuda(test [variant ...]): this test, or these variants of it, load it.
function(mp_fake_cuda test)
    string(REPLACE "/" "_" target ${test})
    add_dependencies(${target} fakecuda)
    set(names ${test})
    if(ARGN)
        list(TRANSFORM ARGN PREPEND "${test}:" OUTPUT_VARIABLE names)
    endif()
    set_property(TEST ${names} APPEND PROPERTY ENVIRONMENT
        LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda)
endfunction()
