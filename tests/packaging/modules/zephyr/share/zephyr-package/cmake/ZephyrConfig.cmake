# A stand-in for Zephyr's build system: of it, what the module and its sample ask. CONFIG is a file that sets CONFIG_..;
# BOARD has the sources of what runs main.
project(Zephyr-Kernel LANGUAGES C)
include(${CONFIG})
set(base ${CMAKE_CURRENT_LIST_DIR}/../../..)

add_library(zephyr_interface INTERFACE)
target_include_directories(zephyr_interface INTERFACE ${base}/include)
add_library(app STATIC)
add_executable(zephyr_final ${base}/printk.c ${BOARD})
target_link_libraries(app PUBLIC zephyr_interface)
target_link_libraries(zephyr_final PRIVATE app)

function(zephyr_include_directories)
    target_include_directories(zephyr_interface INTERFACE ${ARGV})
endfunction()

function(zephyr_compile_definitions)
    target_compile_definitions(zephyr_interface INTERFACE ${ARGV})
endfunction()

function(zephyr_compile_options)
    target_compile_options(zephyr_interface INTERFACE ${ARGV})
endfunction()

macro(zephyr_library_named name)
    set(ZEPHYR_CURRENT_LIBRARY ${name})
    add_library(${name} STATIC)
    target_link_libraries(${name} PUBLIC zephyr_interface)
    target_link_libraries(app PUBLIC ${name})
endmacro()

function(zephyr_library_sources)
    target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGV})
endfunction()

foreach(module ${EXTRA_ZEPHYR_MODULES})
    foreach(key name cmake)
        file(STRINGS ${module}/zephyr/module.yml ${key} REGEX "^ *${key}: ")
        string(REGEX REPLACE "^ *${key}: " "" ${key} ${${key}})
    endforeach()
    add_subdirectory(${module}/${cmake} modules/${name})
endforeach()
