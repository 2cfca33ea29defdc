/* log.h: the daemon's log, one line an event on standard error (the journal's, under systemd). */
#ifndef FAD_LOG_H
#define FAD_LOG_H

enum fad_log_level { FAD_LOG_ERROR, FAD_LOG_INFO };

/* Lines above the level are dropped. FAD_LOG_INFO at first. */
void fad_log_set_level(enum fad_log_level level);

/* Writes "fad: ..." and a newline in one write. Control characters in the text become '?', so that
 * no client forges a line. */
void fad_log(enum fad_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
