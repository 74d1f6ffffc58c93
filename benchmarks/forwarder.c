/* The least a router can do: bytes of a socket to a child's stdin and of its stdout to the socket, unparsed.
   Usage: forwarder SOCKET_FD PROGRAM ARGUMENT... */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 65536, PIPE = 1 << 20 };

static int pass(int from, int to) {
    static char buffer[SIZE];
    ssize_t count = read(from, buffer, SIZE);
    for (ssize_t done = 0; done < count;) {
        ssize_t written = write(to, buffer + done, count - done);
        if (written < 0) return 0;
        done += written;
    }
    return count > 0;
}

int main(int argc, char **argv) {
    int down[2], up[2], sock = argc > 2 ? atoi(argv[1]) : -1;
    if (sock < 0 || pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) return 2;
    fcntl(down[1], F_SETPIPE_SZ, PIPE);
    fcntl(up[0], F_SETPIPE_SZ, PIPE);
    fcntl(sock, F_SETFD, FD_CLOEXEC);
    if (fork() == 0) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    struct pollfd fds[2] = {{sock, POLLIN, 0}, {up[0], POLLIN, 0}};
    while (poll(fds, 2, -1) >= 0) {
        if (fds[0].revents && !pass(sock, down[1])) break;
        if (fds[1].revents && !pass(up[0], sock)) break;
    }
    close(down[1]);
    close(up[0]);
    wait(0);
    return 0;
}
