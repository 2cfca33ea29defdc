/* thread.c: a library with a thread of its own, which is there before main: as tools that are put
 * into a process bring them (profilers, sanitizers). It blocks no signal. */
#include <pthread.h>
#include <unistd.h>

static void *sleep_on(void *argument)
{
    for (;;)
        pause();
    return argument;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, sleep_on, NULL) == 0)
        pthread_detach(thread);
}
