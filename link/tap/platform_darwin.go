package tap

import "github.com/songgao/water"

const advice = "install a driver that has TAP interfaces (tuntaposx) and run as root"

func platform(name string) water.PlatformSpecificParams {
	return water.PlatformSpecificParams{Name: name, Driver: water.MacOSDriverTunTapOSX}
}
