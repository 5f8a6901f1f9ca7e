# The Debian packages of `cpack -G DEB`, one for each component of cmake/install.cmake. What they
# need of other packages, dpkg-shlibdeps (package dpkg-dev) finds in the programs themselves.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR moepager)
set(CPACK_PACKAGE_CONTACT "moepager's developers <moepager@localhost>")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_COMPONENTS_ALL program library development preload)
if(TARGET moepager_mpi)
    list(APPEND CPACK_COMPONENTS_ALL cluster)
endif()

function(mp_package component name section description)
    string(TOUPPER ${component} c)
    set(CPACK_COMPONENT_${c}_DESCRIPTION ${description} PARENT_SCOPE)
    set(CPACK_DEBIAN_${c}_PACKAGE_NAME ${name} PARENT_SCOPE)
    set(CPACK_DEBIAN_${c}_PACKAGE_SECTION ${section} PARENT_SCOPE)
    list(JOIN ARGN ", " needs)
    set(CPACK_DEBIAN_${c}_PACKAGE_DEPENDS ${needs} PARENT_SCOPE)
endfunction()

set(same "(= ${PROJECT_VERSION})")
mp_package(program moepager misc
    "Runs Mixture-of-Experts language models that are larger than memory\n The program moepager: run, chat with, serve, measure and convert models.")
mp_package(library libmoepager${PROJECT_VERSION_MAJOR} libs
    "Pager for experts of Mixture-of-Experts models: shared library\n For programs that page experts of a model of their own.")
mp_package(development libmoepager-dev libdevel
    "Pager for experts of Mixture-of-Experts models: headers\n The header, and those of policy plug-ins, for pkg-config and CMake."
    "libmoepager${PROJECT_VERSION_MAJOR} ${same}")
mp_package(preload moepager-preload misc
    "Pages experts of models under other programs\n What 'moepager preload' puts under llama.cpp and transformers."
    "moepager ${same}")
mp_package(cluster moepager-mpi misc
    "Runs Mixture-of-Experts models on several machines over MPI\n What 'moepager' loads when a cluster runs."
    "moepager ${same}")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "libmicrohttpd12, libedit2") # loaded by serve and chat
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "python3-matplotlib") # plot
set(CPACK_DEBIAN_CLUSTER_PACKAGE_RECOMMENDS openmpi-bin) # mpirun
include(CPack)
