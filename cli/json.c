/* json.c - see json.h. */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef BURST_HAVE_CJSON
#include <cjson/cJSON.h>

static json *sure(json *item) {
    if (!item) fputs("burst: out of memory for JSON\n", stderr), exit(3);
    return item;
}
int json_available(void) { return 1; }
json *json_new(void) { return sure(cJSON_CreateObject()); }
json *json_child(json *object, const char *key) { return sure(cJSON_AddObjectToObject(object, key)); }
void json_text(json *object, const char *key, const char *value) { sure(cJSON_AddStringToObject(object, key, value)); }
void json_number(json *object, const char *key, double value) {
    sure(isfinite(value) ? cJSON_AddNumberToObject(object, key, value) : cJSON_AddNullToObject(object, key));
}
void json_bool(json *object, const char *key, int value) { sure(cJSON_AddBoolToObject(object, key, value)); }
void json_print(json *object) {
    char *text = cJSON_PrintUnformatted(object);
    if (!text) sure(NULL);
    puts(text);
    fflush(stdout);
    cJSON_free(text);
    cJSON_Delete(object);
}

#else

int json_available(void) { return 0; }
json *json_new(void) { return NULL; }
json *json_child(json *object, const char *key) { return (void)key, object; }
void json_text(json *object, const char *key, const char *value) { (void)object, (void)key, (void)value; }
void json_number(json *object, const char *key, double value) { (void)object, (void)key, (void)value; }
void json_bool(json *object, const char *key, int value) { (void)object, (void)key, (void)value; }
void json_print(json *object) { (void)object; }

#endif
