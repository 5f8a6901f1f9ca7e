# The kernels of kernels/cuda compiled for the CPU, for the driver without a device and for tests of
# the kernels; see tests/device/fakecuda/simt.h.
add_library(mp_simt STATIC tests/device/simt/context.c tests/device/simt/simt.c tests/device/simt/table.c
    tests/device/simt/touches.c)
target_link_libraries(mp_simt PUBLIC mp_kernels Threads::Threads m)
set_target_properties(mp_simt PROPERTIES MP_ARITHMETIC ON)
target_link_options(mp_simt INTERFACE -Wl,-u,mp_simt_find)

# mp_simt_kernels(plain FLAGS...): the tables mp_simt_kernels_plain, mp_simt_quant_plain and
# mp_simt_tensor_plain.
function(mp_simt_kernels name)
    foreach(part kernels quant tensor)
        add_library(mp_simt_${part}_${name} OBJECT tests/device/simt/${part}.c)
        target_compile_definitions(mp_simt_${part}_${name} PRIVATE MP_SIMT_TABLE=mp_simt_${part}_${name})
        target_include_directories(mp_simt_${part}_${name} PRIVATE tests/device/simt)
        target_compile_options(mp_simt_${part}_${name} PRIVATE ${ARGN})
        target_link_libraries(mp_simt_${part}_${name} PRIVATE mp_options)
        set_target_properties(mp_simt_${part}_${name} PROPERTIES MP_ARITHMETIC ON)
        set_property(SOURCE tests/device/simt/${part}.c APPEND PROPERTY OBJECT_DEPENDS "${mp_cuda_sources}")
        target_sources(mp_simt PRIVATE $<TARGET_OBJECTS:mp_simt_${part}_${name}>)
    endforeach()
endfunction()
file(GLOB mp_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu*)
if(sanitizers)
    mp_simt_kernels(plain)
else()
    mp_simt_kernels(plain -O2)
endif()
# Every function inlined: constants of the tiles are constants of the code. Sanitizers take minutes
# over that, and see the same in the other one.
if(NOT sanitizers AND NOT MP_COVERAGE AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    mp_simt_kernels(fma -O2 -mfma -mavx2 -DMP_SIMT_FAST=1)
    target_compile_definitions(mp_simt PRIVATE MP_SIMT_FMA=1)
endif()
