package dropin

import (
	"os"
	"path"
	"strings"
)

// ContainerPrefix is where containers have the libraries and the command softrnic, in LibDir and
// bin below it. Images have nothing there.
const ContainerPrefix = "/opt/softrnic"

// Files of a container, below the root directory.
const (
	ContainerLibraries = ContainerPrefix + "/" + LibDir
	ContainerCommand   = ContainerPrefix + "/bin/softrnic"
	// ContainerPreload names the libraries that the dynamic linker loads into every program. It is
	// independent of the environment, which an image may set itself (LD_LIBRARY_PATH) or a remote
	// shell may lack. musl's dynamic linker does not read it.
	ContainerPreload = "/etc/ld.so.preload"
)

// ContainerDirectory is for sockets and files that the processes of a container share. All
// containers have this file system in memory, and all users may write to it. The containers of a
// pod share it, as they share the pod's addresses.
const ContainerDirectory = "/dev/shm"

// EnterContainer makes this process use ContainerDirectory if file is below ContainerPrefix, unless
// the environment names another. It reports whether file is there. The variable is not among those
// of the container, because a remote shell does not have these.
func EnterContainer(file string) (inside bool, err error) {
	inside = strings.HasPrefix(file, ContainerPrefix+"/")
	if !inside || os.Getenv(directoryVariable) != "" {
		return inside, nil
	}
	return inside, os.Setenv(directoryVariable, ContainerDirectory)
}

// directoryVariable is read by package userdir.
const directoryVariable = "SOFTRNIC_DIRECTORY"

// PreloadFile is the file in the directory of the libraries that is ContainerPreload in containers.
const PreloadFile = "ld.so.preload"

// NamesDir has, below the directory of the libraries, a library for each name without a version,
// such as libibverbs.so. Some programs load the libraries by these names.
const NamesDir = "names"

// Preload is the content of PreloadFile. Programs that are linked against one of the libraries, or
// load it by its name, then have the one in ContainerLibraries, whatever the image has. The engine
// is not among them: it is loaded when a program uses RDMA.
func Preload() string {
	list := []string{SysfsLibrary}
	for _, lib := range Libraries[1:] {
		list = append(list, lib, path.Join(NamesDir, strings.TrimSuffix(lib, ".1")))
	}
	for _, lib := range Providers {
		list = append(list, path.Join(ProviderDir("", lib), lib))
	}
	text := ""
	for _, lib := range list {
		text += path.Join(ContainerLibraries, lib) + "\n"
	}
	return text
}
