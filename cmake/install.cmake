# What `cmake --install` puts where: the program, the two libraries and the Python module that
# `moepager preload` puts under others, the shared library with its one header, a pkg-config file
# and a CMake package (find_package(moepager), target moepager::moepager).
install(TARGETS moepager RUNTIME)
install(TARGETS moepager_shared EXPORT moepagerTargets LIBRARY
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES interpose/python/sitecustomize.py interpose/python/moepager_experts.py
    DESTINATION ${CMAKE_INSTALL_DATADIR}/moepager/python)
install(TARGETS moepager_preload moepager_interpose moepager_safetensors LIBRARY)
if(TARGET moepager_mpi)
    install(TARGETS moepager_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES policy/moepager.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The pkg-config file finds its prefix from its own place, so that the tree can be moved.
file(RELATIVE_PATH MP_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" MP_PC_TO_PREFIX "${MP_PC_TO_PREFIX}")
configure_file(cmake/moepager.pc.in moepager.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/moepager.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/moepager)
configure_package_config_file(cmake/moepagerConfig.cmake.in moepagerConfig.cmake
    INSTALL_DESTINATION ${package})
write_basic_package_version_file(moepagerConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT moepagerTargets NAMESPACE moepager:: DESTINATION ${package})
install(FILES ${PROJECT_BINARY_DIR}/moepagerConfig.cmake
    ${PROJECT_BINARY_DIR}/moepagerConfigVersion.cmake DESTINATION ${package})
