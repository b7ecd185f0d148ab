package dropin

import (
	"os"
	"path/filepath"
	"strings"
)

// Libraries are the drop-in libraries; the first is the engine.
var Libraries = []string{"libsoftrnic.so", "libibverbs.so.1", "librdmacm.so.1"}

// Providers are the libraries of vendors that programs are linked against, and that find none of the vendor's devices here. Each is in
// a directory of its own below that of the libraries, as the path is to have it only where the machine lacks the vendor's.
var Providers = []string{"libmlx5.so.1", "libefa.so.1"}

// ProviderDir is the directory of one of Providers in libs.
func ProviderDir(libs, provider string) string {
	return filepath.Join(libs, strings.TrimSuffix(provider, ".so.1"))
}

// OldestGlibc is the oldest release of glibc that has every function which the libraries need. Debian 12, Ubuntu 22.04 and
// RHEL 9 have it.
const OldestGlibc = "2.34"

// LibDir is the directory of the libraries below the prefix that they are installed in. They are not in lib itself, where other
// programs than those of softrnic run would find them.
const LibDir = "lib/softrnic"

// SysfsLibrary is loaded before programs that are to see the devices in sysfs, where they cannot have a mount namespace.
const SysfsLibrary = "libsoftrnic-sysfs.so"

// SocketsLibrary is loaded before programs whose TCP connections softrnic run passes on over RDMA.
const SocketsLibrary = "libsoftrnic-sockets.so"

// LibrariesBeside finds the directory of the libraries for a command softrnic in dir: dir itself, or LibDir beside dir. It
// returns "" if they are in neither.
func LibrariesBeside(dir string) string {
	for _, d := range []string{dir, filepath.Join(dir, "..", LibDir)} {
		if _, err := os.Stat(filepath.Join(d, Libraries[0])); err == nil {
			return d
		}
	}
	return ""
}

// CommandBeside finds the command softrnic for libraries in dir: where LibrariesBeside finds these. It returns "" if it is not
// there.
func CommandBeside(dir string) string {
	for _, f := range []string{filepath.Join(dir, "softrnic"), filepath.Join(dir, "../../bin/softrnic")} {
		if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return f
		}
	}
	return ""
}
