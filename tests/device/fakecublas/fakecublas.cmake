# cuBLAS without a device; see fakecublas.c. Found in LD_LIBRARY_PATH, as the driver is.
add_library(fakecublas SHARED tests/device/fakecublas/fakecublas.c)
set_target_properties(fakecublas PROPERTIES OUTPUT_NAME cublas SOVERSION 13
    C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecublas)
target_link_libraries(fakecublas PRIVATE mp_kernels ${CMAKE_DL_LIBS})
target_link_options(fakecublas PRIVATE -Wl,-Bsymbolic,-z,nodelete)

# The same once more by the name of an older one.
add_library(fakecublas12 SHARED tests/device/fakecublas/fakecublas.c)
target_compile_definitions(fakecublas12 PRIVATE FAKECUBLAS_VERSION=120000)
set_target_properties(fakecublas12 PROPERTIES OUTPUT_NAME cublas SOVERSION 12
    C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecublas12)
target_link_libraries(fakecublas12 PRIVATE mp_kernels ${CMAKE_DL_LIBS})
target_link_options(fakecublas12 PRIVATE -Wl,-Bsymbolic,-z,nodelete)

# mp_fake_cublas(test variant): this variant loads it, and the driver without a device.
function(mp_fake_cublas test variant)
    string(REPLACE "/" "_" target ${test})
    add_dependencies(${target} fakecuda fakecublas)
    set_tests_properties(${test}:${variant} PROPERTIES ENVIRONMENT
        "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda:${CMAKE_BINARY_DIR}/fakecublas;HWLOC_COMPONENTS=-pci,-linuxio")
endfunction()

mp_test(device/cublas_test LIBS mp_engine m VARIANTS good none older)
mp_fake_cuda(device/cublas_test none)
mp_fake_cublas(device/cublas_test good)
add_dependencies(device_cublas_test fakecublas12)
set(libraries ${CMAKE_BINARY_DIR})
set_tests_properties(device/cublas_test:older PROPERTIES ENVIRONMENT
    "LD_LIBRARY_PATH=${libraries}/fakecuda:${libraries}/fakecublas:${libraries}/fakecublas12")
