# Checks of the tree itself, and of what was generated or built from it.
foreach(check check_layers check_source)
    add_test(NAME tools/${check} COMMAND tools/${check}.sh WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(tools/${check} PROPERTIES LABELS static)
endforeach()
add_test(NAME tools/check_options COMMAND tools/check_options.sh $<TARGET_FILE:moepager>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(tools/check_options PROPERTIES LABELS static)
