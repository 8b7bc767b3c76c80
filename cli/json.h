/* json.h - flat JSON objects, one per line, on stdout. The only file that knows cJSON; built without it, json_new says
 * so by returning NULL and --json is refused. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

typedef struct cJSON json;

int json_available(void);
json *json_new(void);
json *json_child(json *object, const char *key); /* an object inside */
void json_text(json *object, const char *key, const char *value);
void json_number(json *object, const char *key, double value); /* null if it is not finite */
void json_bool(json *object, const char *key, int value);
/* Prints the object on one line and frees it. */
void json_print(json *object);

#endif
