#ifndef GCKPT_NO_NOTES
/* Notes are texts (UTF-8) by key that files keep with the parameters, e.g. options or a position in
 * the data. gckpt_store_set_note sets a note (value NULL removes it); returns E_ARG for keys of the
 * file format ("format", "contract", "step", "seed", "optimiser", "data_fnv1a", any key that ends
 * in "#updates"). Loading sets the file's notes; others stay. gckpt_store_note returns the text,
 * valid until the next change, or NULL if the store has no such note. */
GCKPT_API gckpt_result gckpt_store_set_note(gckpt_store *store, const char *key, const char *value);
GCKPT_API const char *gckpt_store_note(const gckpt_store *store, const char *key);
#endif
