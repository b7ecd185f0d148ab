package link

// Departures is a link whose medium reports that another host has left it, even if that host's
// process was killed. Wrappers do not implement it, because they may still hold frames of that
// host.
type Departures interface {
	// WatchDepartures sets the function to call with the Ethernet address of a host that has
	// left. The call comes after all frames of that host have been received. Calls do not
	// overlap. Once WatchDepartures has returned, the previous function is not called any more.
	// Nil ends the calls.
	WatchDepartures(f func(mac [6]byte))
}
