# find_package(gradckpt), and FetchContent by the CMakeLists.txt beside this file: the target
# gradckpt::gradckpt, which is an include directory; nothing is linked. Threads are OpenMP's: link
# OpenMP::OpenMP_C (find_package(OpenMP)) as well. gradckpt::cuda is the backend for CUDA devices,
# if CUDA was among the project's languages before this file was read.
#
# The root is three levels up, of the repository (examples/packaging/cmake) as of what `make install`
# made (share/cmake/gradckpt): so both may be moved.
if(NOT TARGET gradckpt::gradckpt)
    get_filename_component(gradckpt_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
    set(gradckpt_INCLUDE_DIR "${gradckpt_root}")
    set(gradckpt_cuda_source "${gradckpt_root}/gradckpt_cuda.cu")
    if(NOT EXISTS "${gradckpt_INCLUDE_DIR}/gradckpt.h")
        set(gradckpt_INCLUDE_DIR "${gradckpt_root}/include")
        set(gradckpt_cuda_source "${gradckpt_root}/share/gradckpt/gradckpt_cuda.cu")
    endif()

    add_library(gradckpt::gradckpt INTERFACE IMPORTED GLOBAL)
    set_target_properties(gradckpt::gradckpt PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${gradckpt_INCLUDE_DIR}")

    if(CMAKE_CUDA_COMPILER)
        add_library(gradckpt_cuda STATIC EXCLUDE_FROM_ALL "${gradckpt_cuda_source}")
        target_compile_features(gradckpt_cuda PRIVATE cuda_std_17)
        # Products and sums that the compiler contracts are other bits: without this, no backend.
        target_compile_options(gradckpt_cuda PRIVATE -fmad=false)
        target_link_libraries(gradckpt_cuda PUBLIC gradckpt::gradckpt)
        add_library(gradckpt::cuda ALIAS gradckpt_cuda)
    endif()

    # CMake's own default is no optimisation at all.
    get_property(gradckpt_multi GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
    if(NOT gradckpt_multi AND NOT CMAKE_BUILD_TYPE AND NOT gradckpt_FIND_QUIETLY AND
       NOT "${CMAKE_C_FLAGS} ${CMAKE_CXX_FLAGS}" MATCHES "(^| )[-/]O")
        message("gradckpt: no CMAKE_BUILD_TYPE, so its kernels are compiled without optimisation and are slow;"
                " configure with -DCMAKE_BUILD_TYPE=Release")
    endif()
    unset(gradckpt_multi)
    unset(gradckpt_root)
    unset(gradckpt_cuda_source)
endif()
