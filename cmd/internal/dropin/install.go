package dropin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Libraries are the drop-in libraries. The first is the engine.
var Libraries = []string{"libsoftrnic.so", "libibverbs.so.1", "librdmacm.so.1"}

// Providers are stand-ins for vendors' libraries that programs are linked against. They find none
// of the vendor's devices. Each has its own directory below that of the libraries, which is in the
// library path only if the machine lacks the vendor's library.
var Providers = []string{"libmlx5.so.1", "libefa.so.1", "libhns.so.1", "libionic.so.1", "libmana.so.1", "libmlx4.so.1"}

// ProviderDir returns the directory in libs of one of Providers.
func ProviderDir(libs, provider string) string {
	return filepath.Join(libs, strings.TrimSuffix(provider, ".so.1"))
}

// OldestGlibc is the oldest release of glibc with all functions that the libraries need. Debian 12,
// Ubuntu 22.04 and RHEL 9 have it.
const OldestGlibc = "2.34"

// LibDir is the directory of the libraries below their prefix. They are not in lib itself, where
// programs without softrnic run would find them.
const LibDir = "lib/softrnic"

// SysfsLibrary is preloaded to show programs the devices in sysfs if they cannot have a mount
// namespace.
const SysfsLibrary = "libsoftrnic-sysfs.so"

// SocketsLibrary is preloaded into programs whose TCP connections softrnic run carries over RDMA.
const SocketsLibrary = "libsoftrnic-sockets.so"

// FindInstall returns the directory of the libraries and the file of the running command softrnic.
// libs is the directory, or empty if it is where LibrariesBeside finds it.
func FindInstall(libs string) (dir, command string, err error) {
	if command, err = os.Executable(); err != nil {
		return "", "", err
	}
	if command, err = filepath.EvalSymlinks(command); err != nil {
		return "", "", err
	}
	if dir = libs; dir == "" {
		if dir = LibrariesBeside(filepath.Dir(command)); dir == "" {
			return "", "",
				fmt.Errorf("%s is neither beside %s nor in ../%s: go run ./cmd/dropin/build -prefix DIR builds and installs it "+
					"with this command, and --libs says where it is", Libraries[0], command, LibDir)
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", err
	}
	for _, lib := range Libraries {
		if _, err := os.Stat(filepath.Join(dir, lib)); err != nil {
			return "", "", fmt.Errorf("--libs: %w", err)
		}
	}
	return dir, command, nil
}

// LibrariesBeside returns the directory of the libraries for a command softrnic in dir: dir itself,
// or LibDir next to dir. It returns "" if neither has them.
func LibrariesBeside(dir string) string {
	for _, d := range []string{dir, filepath.Join(dir, "..", LibDir)} {
		if _, err := os.Stat(filepath.Join(d, Libraries[0])); err == nil {
			return d
		}
	}
	return ""
}

// CommandBeside returns the command softrnic for libraries in dir, the inverse of LibrariesBeside.
// It returns "" if there is none.
func CommandBeside(dir string) string {
	for _, f := range []string{filepath.Join(dir, "softrnic"), filepath.Join(dir, "../../bin/softrnic")} {
		if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return f
		}
	}
	return ""
}
