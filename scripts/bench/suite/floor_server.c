/* Floor of the benchmark: an HTTP server that only receives requests and sends one answer.

   floor_server --answer FILE --port PORT

   One thread, one epoll, level-triggered, as libuv; connections persist.  Of a request it reads the
   end of the head and content-length, nothing else.  The bytes of FILE, head and body, are the
   answer to every request.  It ends by a signal, or with status 1 after an error of a system call. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 1024, REQUEST_BYTES_MAX = 4 << 20, ANSWER_BYTES_MAX = 1 << 20 };

struct connection {
  int socket;
  size_t used, room;
  char *bytes;
};

static char answer[ANSWER_BYTES_MAX];
static size_t answer_bytes;
/* Most requests arrive whole: only the rest of a partial one is copied to its connection. */
static char received[REQUEST_BYTES_MAX];

static void fail(const char *call) {
  perror(call);
  exit(1);
}

/* Return the bytes of the request at the beginning, 0 for an incomplete one. */
static size_t request_bytes(const char *bytes, size_t n) {
  static const char name[] = "\ncontent-length:";
  const char *end = memmem(bytes, n, "\r\n\r\n", 4);
  if (end == NULL) return 0;
  size_t total = (size_t)(end - bytes) + 4;
  for (const char *at = bytes; (at = memchr(at, '\n', (size_t)(end - at))) != NULL; at++)
    if ((size_t)(end - at) > sizeof name && strncasecmp(at, name, sizeof name - 1) == 0) {
      total += strtoul(at + sizeof name - 1, NULL, 10);
      break;
    }
  return total <= n ? total : 0;
}

/* Answer the complete requests; return the bytes of these, or -1 for a client that is gone. */
static ssize_t answer_all(int socket, const char *bytes, size_t n) {
  size_t at = 0, size;
  while ((size = request_bytes(bytes + at, n - at)) != 0) {
    if (write(socket, answer, answer_bytes) != (ssize_t)answer_bytes) return -1;
    at += size;
  }
  return (ssize_t)at;
}

static void close_connection(struct connection *client) {
  close(client->socket);
  free(client->bytes);
  free(client);
}

/* Append what was received to a partial request; return 0 beyond the limit. */
static int keep_bytes(struct connection *client, const char *bytes, size_t n) {
  if (client->used + n > REQUEST_BYTES_MAX) return 0;
  if (client->used + n > client->room) {
    client->room = 2 * (client->used + n);
    client->bytes = realloc(client->bytes, client->room);
    if (client->bytes == NULL) fail("realloc");
  }
  memcpy(client->bytes + client->used, bytes, n);
  client->used += n;
  return 1;
}

static void serve(struct connection *client) {
  ssize_t n = read(client->socket, received, sizeof received);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  ssize_t done = -1;
  if (n > 0 && client->used == 0) {
    done = answer_all(client->socket, received, (size_t)n);
    if (done >= 0 && done < n && !keep_bytes(client, received + done, (size_t)(n - done))) done = -1;
  } else if (n > 0 && keep_bytes(client, received, (size_t)n)) {
    done = answer_all(client->socket, client->bytes, client->used);
    if (done > 0) {
      client->used -= (size_t)done;
      memmove(client->bytes, client->bytes + done, client->used);
    }
  }
  if (done < 0) close_connection(client);
}

static void accept_connection(int poll, int listener) {
  int yes = 1, socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (socket < 0) return;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  struct connection *client = calloc(1, sizeof *client);
  if (client == NULL) fail("calloc");
  client->socket = socket;
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
  if (epoll_ctl(poll, EPOLL_CTL_ADD, socket, &event) < 0) fail("epoll_ctl");
}

static int listen_on(int port) {
  int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener < 0) fail("socket");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
  if (listen(listener, 1024) < 0) fail("listen");
  return listener;
}

static void read_answer(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail(path);
  answer_bytes = fread(answer, 1, sizeof answer, file);
  fclose(file);
}

int main(int n_arguments, char **arguments) {
  int port = 0;
  for (int k = 1; k + 1 < n_arguments; k += 2) {
    if (strcmp(arguments[k], "--answer") == 0) read_answer(arguments[k + 1]);
    if (strcmp(arguments[k], "--port") == 0) port = atoi(arguments[k + 1]);
  }
  if (answer_bytes == 0 || port == 0) {
    fputs("usage: floor_server --answer FILE --port PORT\n", stderr);
    return 1;
  }
  int listener = listen_on(port), poll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
  if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event) < 0) fail("epoll");
  for (;;) {
    int n = epoll_wait(poll, events, EVENTS, -1);
    if (n < 0 && errno != EINTR) fail("epoll_wait");
    for (int k = 0; k < n; k++)
      if (events[k].data.ptr == NULL)
        accept_connection(poll, listener);
      else
        serve(events[k].data.ptr);
  }
}
