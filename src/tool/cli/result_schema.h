/* The JSON Schema of results. */
#ifndef RESULT_SCHEMA_H
#define RESULT_SCHEMA_H

/* Prints the JSON Schema (draft-07) of the documents of --json to standard output. */
void result_schema_print(void);

#endif
