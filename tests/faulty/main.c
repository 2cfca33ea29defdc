/* fad-faulty: see faulty.h. */
#include "daemon/server/program.h"
#include "tests/faulty/faulty.h"

int main(int argc, char *argv[])
{
    return fad_program(argc, argv, faulty_backend_named);
}
