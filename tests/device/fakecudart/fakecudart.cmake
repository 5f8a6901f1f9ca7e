# The runtime over the driver without a device; see fakecudart.h. One library for each release whose
# names of symbols programs are linked with.
foreach(version 12 13)
    set(target fakecudart${version})
    configure_file(tests/device/fakecudart/fakecudart.map.in ${target}.map @ONLY)
    add_library(${target} SHARED
        tests/device/fakecudart/launch.c
        tests/device/fakecudart/memory.c
        tests/device/fakecudart/state.c
        tests/device/fakecudart/streams.c)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME cudart SOVERSION ${version}
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecudart/${version}
        LINK_DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
    target_link_libraries(${target} PRIVATE mp_options Threads::Threads ${CMAKE_DL_LIBS})
    target_link_options(${target} PRIVATE -Wl,-Bsymbolic
        -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
endforeach()
