#endif /* GCKPTI_ISA */
