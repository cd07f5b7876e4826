#if defined(GRADCKPT_IMPLEMENTATION) && !defined(GRADCKPT_IMPLEMENTED)
#define GRADCKPT_IMPLEMENTED
#ifdef _WIN32 /* <windows.h> defines these */
#pragma push_macro("far")
#pragma push_macro("hyper")
#pragma push_macro("near")
#pragma push_macro("small")
#undef far
#undef hyper
#undef near
#undef small
#endif
