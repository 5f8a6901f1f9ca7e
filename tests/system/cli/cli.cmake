# mp_cli_test(usage_test): drives the built program; see tests/system/cli/cli.h.
# mp_cli_test(habits_test): drives the built program; see tests/system/cli/cli.h.
function(mp_cli_test name)
    mp_test(system/cli/${name} LIBS mp_base PkgConfig::JANSSON SOURCES tests/system/cli/cli.c ${ARGN}
        ARGS $<TARGET_FILE:moepager> LABELS cli TIMEOUT 600)
endfunction()

mp_cli_test(usage_test)
mp_cli_test(habits_test)
mp_cli_test(help_test)
mp_cli_test(calibrate_test)
target_link_libraries(system_cli_calibrate_test PRIVATE m)
mp_cli_test(decisions_test)
mp_cli_test(device_machine_test)
mp_cli_test(device_test)
target_link_libraries(system_cli_device_test PRIVATE mp_policy)
mp_cli_test(generate_test)
mp_cli_test(output_test tests/support/npy.c)
target_link_libraries(system_cli_output_test PRIVATE mp_policy m)
mp_cli_test(plan_test)
target_link_libraries(system_cli_plan_test PRIVATE m)
mp_cli_test(preload_check_test tests/support/gguf.c)
mp_cli_test(preload_test)
mp_cli_test(replay_test)
mp_cli_test(signal_test tests/support/npy.c)
target_link_libraries(system_cli_signal_test PRIVATE mp_policy m)
mp_cli_test(slices_test)
mp_cli_test(terminal_test)

foreach(test preload preload_check)
    add_dependencies(system_cli_${test}_test moepager_preload moepager_interpose)
endforeach()

# What `info` shows of CUDA, and what runs on it, is asked of the driver without a device.
add_dependencies(system_cli_help_test fakecuda)
add_dependencies(system_cli_device_machine_test fakecuda)
add_dependencies(system_cli_device_test fakecuda fakecublas)
set_property(TEST system/cli/help_test system/cli/device_test system/cli/device_machine_test APPEND PROPERTY
    ENVIRONMENT FAKECUDA_DIR=${CMAKE_BINARY_DIR}/fakecuda)

# The longest by far: begun first, or one processor waits for it at the end.
set_property(TEST system/cli/device_test system/cli/device_machine_test PROPERTY COST 1000)
