/* Prints a program for people (text) and for tools (JSON). */
#ifndef CORE_DUMP_H
#define CORE_DUMP_H

#include "core/program.h"
#include "core/str.h"

/* Head line, storages by class, then every segment op by op, then the schedule. Equal
 * programs print equal text. */
void program_dump_text(const struct program *p, struct str *out);

/* The same content as one JSON object: values, storages, ops, segments, calls. */
void program_dump_json(const struct program *p, struct str *out);

#endif
