#if defined(GCKPTI_ISA) && GCKPTI_ISA >= 0
