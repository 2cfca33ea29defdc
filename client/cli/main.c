/* main.c: fa-cli, a tool to try the fad daemon with. Finds the command and prints its error. */
#include "client/cli/cli.h"
#include "client/cli/options.h"
#include "proto/fa_version.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct cli_command *const commands[] = {
    &cli_run_command,   &cli_info_command,  &cli_ping_command,  &cli_load_command,
    &cli_bench_command, &cli_stats_command, &cli_doctor_command};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static const struct cli_command *find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static void print_overview(void)
{
    puts("usage: fa-cli COMMAND [option ...]\n"
         "\n"
         "Sends work to fad, the attention daemon.\n"
         "\n"
         "commands:");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        printf("  %-8s%s\n", commands[i]->name, commands[i]->title);
    puts("  help    Print the options of a command: fa-cli help run\n"
         "\n"
         "  --version  print this tool's version\n"
         "  --help     print this, or after a command: its options\n"
         "\n"
         "exit codes:");
#define PRINT_EXIT(name, number, text) printf("  %d  %s\n", number, text);
    CLI_EXIT_LIST(PRINT_EXIT)
#undef PRINT_EXIT
}

static enum cli_exit unknown(const char *name, struct cli_error *error)
{
    return cli_fail(error, CLI_USAGE, "%s: no such command; `fa-cli --help` lists them", name);
}

static enum cli_exit help(int argc, char **argv, struct cli_error *error)
{
    const struct cli_command *command;

    if (argc < 2) {
        print_overview();
        return CLI_OK;
    }
    command = find(argv[1]);
    if (!command)
        return unknown(argv[1], error);
    if (argc > 2)
        return cli_fail(error, CLI_USAGE, "'%s': help takes one command", argv[2]);
    cli_print_help(command, stdout);
    return CLI_OK;
}

static bool is_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h");
}

static enum cli_exit dispatch(int argc, char **argv, struct cli_error *error)
{
    const struct cli_command *command;

    if (argc < 2)
        return cli_fail(error, CLI_USAGE, "say what to do: `fa-cli --help` lists the commands");
    if (is_help(argv[1])) {
        print_overview();
        return CLI_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("fa-cli " FA_VERSION);
        return CLI_OK;
    }
    if (!strcmp(argv[1], "help"))
        return help(argc - 1, argv + 1, error);
    command = find(argv[1]);
    if (!command)
        return unknown(argv[1], error);
    for (int i = 2; i < argc; i++) {
        if (is_help(argv[i])) {
            cli_print_help(command, stdout);
            return CLI_OK;
        }
    }
    return command->run(argc - 1, argv + 1, error);
}

int main(int argc, char **argv)
{
    struct cli_error error = {0};
    enum cli_exit code;

    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is a failed write, with its line */
    code = dispatch(argc, argv, &error);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK)
        code = cli_fail(&error, CLI_FAILED, "standard output could not be written");
    if (error.text[0])
        fprintf(stderr, "fa-cli: %s\n", error.text);
    return code;
}
