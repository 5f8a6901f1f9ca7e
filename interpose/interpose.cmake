# libmoepager_preload.so is in every program that is started with it: nothing but libc, and only
# the hooks are exported. libmoepager_interpose.so is opened when there is something to page: what
# it is linked with is inside, as far as there are archives, so that it works where our own
# libraries are not installed, and only its table is exported.
add_library(moepager_preload SHARED
    interpose/preload.c
    interpose/preload_ggml.c
    interpose/preload_copies.c
    interpose/preload_memory.c
    interpose/preload_real.c
    interpose/cuda/hooks/hooks.c
    interpose/cuda/hooks/copies.c
    interpose/cuda/hooks/driver.c
    interpose/cuda/hooks/driver_memory.c
    interpose/cuda/hooks/gate.c
    interpose/cuda/hooks/lookup.c
    interpose/cuda/hooks/runtime.c)
target_link_libraries(moepager_preload PRIVATE mp_base ${CMAKE_DL_LIBS})

add_library(mp_interpose STATIC
    interpose/ahead.c
    interpose/dense.c
    interpose/entry.c
    interpose/experts.c
    interpose/experts_st.c
    interpose/ggml.c
    interpose/paged.c
    interpose/record.c
    interpose/report.c
    interpose/routing.c
    interpose/seam.c
    interpose/settings.c
    interpose/shown.c
    interpose/stream.c
    interpose/views.c
    interpose/watch.c
    interpose/cuda/gpu.c
    interpose/cuda/gpu_state.c
    interpose/cuda/identity.c
    interpose/cuda/objects.c
    interpose/cuda/sites.c
    interpose/cuda/tiers.c
    interpose/cuda/tiers_move.c
    interpose/cuda/tiers_touch.c
    interpose/cuda/work.c)
target_link_libraries(mp_interpose PUBLIC mp_policy PkgConfig::UNWIND)

# Archives of libraries come behind ours and before the shared ones, which are then not needed.
add_library(moepager_interpose SHARED interpose/placement.c interpose/table.c
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
    $<TARGET_FILE:mp_interpose> $<TARGET_FILE:mp_policy> $<TARGET_FILE:mp_vmm>
    $<TARGET_FILE:mp_base> ${archives} mp_interpose)
# Opened for safetensors files only, because it needs the library of JSON.
add_library(moepager_safetensors SHARED interpose/safetensors.c)
target_link_libraries(moepager_safetensors PRIVATE mp_vmm)
foreach(library preload interpose safetensors)
    set_target_properties(moepager_${library} PROPERTIES
        LINK_DEPENDS ${PROJECT_SOURCE_DIR}/interpose/${library}.map)
    target_link_options(moepager_${library} PRIVATE -Wl,--as-needed -Wl,--gc-sections
        -Wl,-z,nodelete -Wl,--exclude-libs,ALL
        -Wl,--version-script=${PROJECT_SOURCE_DIR}/interpose/${library}.map)
endforeach()
