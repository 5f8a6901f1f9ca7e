# cuBLAS without a device; see fakecublas.c. Found in LD_LIBRARY_PATH, as the driver is.
add_library(fakecublas SHARED tests/fakecublas/fakecublas.c)
set_target_properties(fakecublas PROPERTIES OUTPUT_NAME cublas SOVERSION 13
    C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fakecublas)
target_link_libraries(fakecublas PRIVATE mp_kernels ${CMAKE_DL_LIBS})
target_link_options(fakecublas PRIVATE -Wl,-Bsymbolic,-z,nodelete)

mp_test(engine/cublas_test LIBS mp_engine m VARIANTS good none)
mp_fake_cuda(engine/cublas_test good none)
add_dependencies(engine_cublas_test fakecublas)
set_tests_properties(engine/cublas_test:good PROPERTIES ENVIRONMENT
    "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fakecuda:${CMAKE_BINARY_DIR}/fakecublas")
