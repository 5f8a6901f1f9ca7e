# cuBLAS without a device; see fakecublas.c. Found in LD_LIBRARY_PATH, as the driver is.
add_library(fakecublas SHARED tests/fakecublas/fakecublas.c)
set_target_properties(fakecublas PROPERTIES OUTPUT_NAME cublas SOVERSION 13
    C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecublas)
target_link_libraries(fakecublas PRIVATE mp_kernels ${CMAKE_DL_LIBS})
target_link_options(fakecublas PRIVATE -Wl,-Bsymbolic,-z,nodelete)

# mp_fake_cublas(test variant): this variant loads it, and the driver without a device.
function(mp_fake_cublas test variant)
    string(REPLACE "/" "_" target ${test})
    add_dependencies(${target} fakecuda fakecublas)
    set_tests_properties(${test}:${variant} PROPERTIES ENVIRONMENT
        "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda:${CMAKE_BINARY_DIR}/fakecublas")
endfunction()

mp_test(engine/cublas_test LIBS mp_engine m VARIANTS good none)
mp_fake_cuda(engine/cublas_test none)
mp_fake_cublas(engine/cublas_test good)
