// Package userdir has the directories in which the processes of one user meet: by unix sockets and locks that nobody else can
// reach.
package userdir

import (
	"os"
	"path/filepath"
	"strconv"
)

// Default is softrnic in $XDG_RUNTIME_DIR. Where that is not set, or is another user's, as in a program that has given up root's
// rights, it is softrnic-UID in the directory for temporary files.
func Default() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && !anothers(dir) {
		return filepath.Join(dir, "softrnic")
	}
	return filepath.Join(os.TempDir(), "softrnic-"+strconv.Itoa(os.Getuid()))
}
