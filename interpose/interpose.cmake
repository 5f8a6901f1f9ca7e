# libmoepager_preload.so is in every program that is started with it: nothing but libc, and only
# the hooks are exported. libmoepager_interpose.so is opened when there is something to page: what
# it is linked with is inside, as far as there are archives, so that it works where our own
# libraries are not installed, and only its table is exported.
add_library(moepager_preload SHARED
    interpose/preload/preload.c
    interpose/preload/preload_exec.c
    interpose/preload/preload_ggml.c
    interpose/preload/preload_copies.c
    interpose/preload/preload_memory.c
    interpose/preload/preload_real.c
    interpose/cuda/hooks/hooks.c
    interpose/cuda/hooks/copies.c
    interpose/cuda/hooks/driver.c
    interpose/cuda/hooks/driver_memory.c
    interpose/cuda/hooks/gate.c
    interpose/cuda/hooks/lookup.c
    interpose/cuda/hooks/runtime.c)
target_link_libraries(moepager_preload PRIVATE mp_base ${CMAKE_DL_LIBS})
if(sanitizers)
    # A sanitizer finds functions by dlsym(), which is hooked there, before its own begin is over.
    set_source_files_properties(interpose/cuda/hooks/lookup.c PROPERTIES
        COMPILE_OPTIONS -fno-sanitize=all)
endif()
if(MP_SANITIZE STREQUAL "thread")
    # libunwind and others call munmap() when a thread ends and the sanitizer has given up its state.
    set_source_files_properties(interpose/preload/preload.c interpose/preload/preload_memory.c
        interpose/cuda/hooks/hooks.c PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
endif()

add_library(mp_interpose STATIC
    interpose/entry/calls.c
    interpose/entry/entry.c
    interpose/model/experts.c
    interpose/model/experts_st.c
    interpose/model/routers.c
    interpose/model/tables.c
    interpose/pager/ahead.c
    interpose/pager/dense.c
    interpose/pager/ggml.c
    interpose/pager/names.c
    interpose/pager/paged.c
    interpose/pager/record.c
    interpose/pager/report.c
    interpose/pager/routing.c
    interpose/pager/scores.c
    interpose/pager/uploads.c
    interpose/pager/settings.c
    interpose/pager/stream.c
    interpose/pager/watch.c
    interpose/mapping/moves.c
    interpose/mapping/descriptors.c
    interpose/mapping/mappings.c
    interpose/mapping/mappings_room.c
    interpose/mapping/mapped_files.c
    interpose/mapping/written.c
    interpose/cuda/gpu.c
    interpose/cuda/gpu_state.c
    interpose/cuda/identity.c
    interpose/cuda/objects.c
    interpose/cuda/sites.c
    interpose/cuda/tiers.c
    interpose/cuda/tiers_move.c
    interpose/cuda/tiers_touch.c
    interpose/cuda/work.c)
target_link_libraries(mp_interpose PUBLIC mp_policy mp_kernels PkgConfig::UNWIND)

# Archives of libraries come behind ours and before the shared ones, which are then not needed.
add_library(moepager_interpose SHARED interpose/entry/placement.c interpose/entry/table.c
    interpose/cuda/gpu_table.c)
set(archives)
foreach(library uring)
    find_library(mp_archive_${library} lib${library}.a)
    mark_as_advanced(mp_archive_${library})
    if(mp_archive_${library})
        list(APPEND archives ${mp_archive_${library}})
    endif()
endforeach()
add_dependencies(moepager_interpose mp_interpose)
target_link_libraries(moepager_interpose PRIVATE
    $<TARGET_FILE:mp_interpose> $<TARGET_FILE:mp_kernels> $<TARGET_FILE:mp_policy> $<TARGET_FILE:mp_vmm>
    $<TARGET_FILE:mp_base> ${archives} mp_interpose)
# Opened for safetensors files only, because it needs the library of JSON.
add_library(moepager_safetensors SHARED interpose/model/safetensors.c)
target_link_libraries(moepager_safetensors PRIVATE mp_vmm)
foreach(library preload:preload interpose:entry safetensors:model)
    string(REGEX REPLACE ":.*" "" name ${library})
    string(REGEX REPLACE ".*:" "" folder ${library})
    set(map ${PROJECT_SOURCE_DIR}/interpose/${folder}/${name}.map)
    set_target_properties(moepager_${name} PROPERTIES LINK_DEPENDS ${map})
    target_link_options(moepager_${name} PRIVATE -Wl,--as-needed -Wl,--gc-sections
        -Wl,-z,nodelete -Wl,--exclude-libs,ALL -Wl,--version-script=${map})
endforeach()

add_executable(bench_windows tools/bench/windows.c tools/bench/windows_ways.c)
target_link_libraries(bench_windows PRIVATE mp_interpose Threads::Threads)
