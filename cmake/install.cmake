# What `cmake --install` puts where: the program with its man page and completions, the libraries
# and the Python module that `moepager preload` puts under others, the shared library with its one
# header, the headers of policy plug-ins, a pkg-config file and a CMake package (find_package(moepager), target moepager::moepager).
# Each file belongs to one component: program, library, development, preload or cluster;
# each component is a Debian package (cmake/package.cmake).
install(TARGETS moepager RUNTIME COMPONENT program)
install(TARGETS moepager_shared EXPORT moepagerTargets
    LIBRARY COMPONENT library NAMELINK_COMPONENT development
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES interpose/python/sitecustomize.py interpose/python/moepager_experts.py
    DESTINATION ${CMAKE_INSTALL_DATADIR}/moepager/python COMPONENT preload)
install(FILES tools/python/moepager/__init__.py tools/python/moepager/plot.py
    DESTINATION ${CMAKE_INSTALL_DATADIR}/moepager/python/moepager COMPONENT program)
install(TARGETS moepager_preload moepager_interpose moepager_safetensors LIBRARY COMPONENT preload)
if(TARGET moepager_mpi)
    install(TARGETS moepager_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cluster)
endif()
# Pages that the program prints from its table of options: a man page and completions of three shells.
set(pages ${PROJECT_BINARY_DIR}/pages)
add_custom_command(OUTPUT ${pages}/moepager.1 ${pages}/moepager ${pages}/_moepager ${pages}/moepager.fish
    COMMAND ${CMAKE_COMMAND} -E make_directory ${pages}
    COMMAND moepager env --page man > ${pages}/moepager.1
    COMMAND moepager env --page bash > ${pages}/moepager
    COMMAND moepager env --page zsh > ${pages}/_moepager
    COMMAND moepager env --page fish > ${pages}/moepager.fish
    DEPENDS moepager)
add_custom_target(pages ALL DEPENDS ${pages}/moepager.1)
install(FILES ${pages}/moepager.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
    COMPONENT program)
install(FILES ${pages}/moepager DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    COMPONENT program)
install(FILES ${pages}/_moepager DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
    COMPONENT program)
install(FILES ${pages}/moepager.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
    COMPONENT program)
install(FILES policy/moepager.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
# What a plug-in includes (policy/plugin.h), in the folders that the headers themselves name.
foreach(header policy/plugin.h policy/policy.h policy/builtins.h policy/costs.h policy/residents.h
    vmm/base/arena.h vmm/base/compiler.h vmm/base/error.h vmm/base/status.h vmm/options/opt.h)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/moepager/${folder}
        COMPONENT development)
endforeach()

# The pkg-config file finds its prefix from its own place, so that the tree can be moved.
file(RELATIVE_PATH MP_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" MP_PC_TO_PREFIX "${MP_PC_TO_PREFIX}")
configure_file(cmake/moepager.pc.in moepager.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/moepager.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT development)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/moepager)
configure_package_config_file(cmake/moepagerConfig.cmake.in moepagerConfig.cmake
    INSTALL_DESTINATION ${package})
write_basic_package_version_file(moepagerConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT moepagerTargets NAMESPACE moepager:: DESTINATION ${package}
    COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/moepagerConfig.cmake
    ${PROJECT_BINARY_DIR}/moepagerConfigVersion.cmake DESTINATION ${package} COMPONENT development)
