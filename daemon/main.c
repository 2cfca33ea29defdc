/* fad: the attention daemon. All of it is in the library. */
#include "daemon/backend/backends.h"
#include "daemon/server/program.h"

int main(int argc, char *argv[])
{
    return fad_program(argc, argv, fad_backend_named);
}
