// Stores one job: ./example-producer unix:/run/awa-proxy/awa.sock '{"to": "ada@example.org"}'
#include <awa.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    awa_connection *connection;
    struct awa_error error;
    struct awa_new_job job = {.queue = "mail", .kind = "email.send"};
    int64_t id;
    if (argc != 3)
        return fprintf(stderr, "usage: %s ADDRESS JSON\n", argv[0]), 2;
    job.args = argv[2];
    if (awa_connect(argv[1], NULL, &connection, &error) != AWA_OK ||
        awa_enqueue(connection, &job, &id, &error) != AWA_OK)
        return fprintf(stderr, "%s: %s\n", awa_code_name(error.code), error.message), 1;
    printf("stored job %lld\n", (long long)id);
    return awa_goodbye(connection, NULL, &error) == AWA_OK ? 0 : 1;
}
