// The directory with the devices' files.
#ifndef TREE_H
#define TREE_H

// devices_tree returns the directory for a path that a program uses, or NULL.
const char *devices_tree(const char *path);

// netlink_answers starts the command softrnic to answer requests of netlink for the devices of a
// directory, and returns the socket to it, or -1. SOCK_CLOEXEC and SOCK_NONBLOCK may be flags.
int netlink_answers(const char *tree, int flags);

#endif
