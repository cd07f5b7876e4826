# Read by find_package(gradckpt), and by FetchContent through the CMakeLists.txt in this folder. Defines:
#
#     gradckpt::gradckpt   header and implementation. Links the library that `make install` built; without such a library
#                          the project's build compiles the implementation once, with OpenMP if CMake finds it
#     gradckpt::header     the header alone: one file of the program has the implementation
#     gradckpt::cuda       the backend for CUDA devices, if CUDA was enabled in the project before this file was read
#     gradckpt_EXAMPLES_DIR   folder with the headers of examples/, to copy or to include
#
# Both targets add -ffp-contract=off (gcc, clang), so that a program computes the same data on every machine.
#
# The root is three levels up, both in the repository (examples/packaging/cmake) and in a package (share/cmake/gradckpt).
# `make install` writes the root and the library's link options into another file of this folder.
if(NOT TARGET gradckpt::header)
    set(gradckpt_root "${CMAKE_CURRENT_LIST_DIR}/../../..")
    unset(gradckpt_archive)
    include("${CMAKE_CURRENT_LIST_DIR}/gradckptInstalled.cmake" OPTIONAL)
    get_filename_component(gradckpt_root "${gradckpt_root}" ABSOLUTE)
    set(gradckpt_INCLUDE_DIR "${gradckpt_root}")
    set(gradckpt_EXAMPLES_DIR "${gradckpt_root}/examples")
    set(gradckpt_cuda_source "${gradckpt_root}/gradckpt_cuda.cu")
    if(NOT EXISTS "${gradckpt_INCLUDE_DIR}/gradckpt.h")
        set(gradckpt_INCLUDE_DIR "${gradckpt_root}/include")
        set(gradckpt_EXAMPLES_DIR "${gradckpt_root}/share/gradckpt/examples")
        set(gradckpt_cuda_source "${gradckpt_root}/share/gradckpt/gradckpt_cuda.cu")
    endif()

    add_library(gradckpt::header INTERFACE IMPORTED GLOBAL)
    set_target_properties(gradckpt::header PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${gradckpt_INCLUDE_DIR}")
    foreach(gradckpt_language C CXX)
        if(CMAKE_${gradckpt_language}_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
            set_property(TARGET gradckpt::header APPEND PROPERTY INTERFACE_COMPILE_OPTIONS
                "$<$<COMPILE_LANGUAGE:${gradckpt_language}>:-ffp-contract=off>")
        endif()
    endforeach()
    unset(gradckpt_language)

    if(gradckpt_archive)
        get_filename_component(gradckpt_archive "${gradckpt_archive}" ABSOLUTE)
        add_library(gradckpt::gradckpt STATIC IMPORTED GLOBAL)
        set_target_properties(gradckpt::gradckpt PROPERTIES IMPORTED_LOCATION "${gradckpt_archive}")
        set_target_properties(gradckpt::gradckpt PROPERTIES
            INTERFACE_LINK_LIBRARIES "gradckpt::header;${gradckpt_link}")
    elseif(CMAKE_C_COMPILER OR CMAKE_CXX_COMPILER)
        set(gradckpt_language C)
        if(NOT CMAKE_C_COMPILER)
            set(gradckpt_language CXX)
            set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/gradckpt.c" PROPERTIES LANGUAGE CXX)
        endif()
        add_library(gradckpt_library STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/gradckpt.c")
        add_library(gradckpt::gradckpt ALIAS gradckpt_library)
        set_target_properties(gradckpt_library PROPERTIES OUTPUT_NAME gradckpt POSITION_INDEPENDENT_CODE ON)
        target_link_libraries(gradckpt_library PUBLIC gradckpt::header)
        find_package(OpenMP QUIET)
        if(TARGET OpenMP::OpenMP_${gradckpt_language})
            target_link_libraries(gradckpt_library PRIVATE OpenMP::OpenMP_${gradckpt_language})
        endif()
        # If no build type is set, CMake does not optimise, and the kernels would be slow.
        if(NOT "${CMAKE_${gradckpt_language}_FLAGS}" MATCHES "(^| )[-/]O")
            target_compile_options(gradckpt_library PRIVATE "$<$<STREQUAL:$<CONFIG>,>:-O2>")
        endif()
        unset(gradckpt_language)
    endif()

    if(CMAKE_CUDA_COMPILER)
        add_library(gradckpt_cuda STATIC EXCLUDE_FROM_ALL "${gradckpt_cuda_source}")
        target_compile_features(gradckpt_cuda PRIVATE cuda_std_17)
        # Without this option, a product and a sum may have one rounding instead of two; the backend then refuses to start.
        target_compile_options(gradckpt_cuda PRIVATE -fmad=false)
        target_link_libraries(gradckpt_cuda PUBLIC gradckpt::gradckpt)
        add_library(gradckpt::cuda ALIAS gradckpt_cuda)
    endif()
    unset(gradckpt_root)
    unset(gradckpt_archive)
    unset(gradckpt_link)
    unset(gradckpt_cuda_source)
endif()
