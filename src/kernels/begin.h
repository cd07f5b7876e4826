#ifdef GCKPTI_ISA
