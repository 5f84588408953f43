/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The event loop: descriptors and timers, each with a function that is called from ddekit_ev_poll()
 * and nowhere else.
 */
#ifndef DDEKIT_EVENT_H
#define DDEKIT_EVENT_H

#include <stdbool.h>
#include <stdint.h>

struct ddekit_watch;

/**
 * struct ddekit_timer - one time at which to be called; the owner's memory, zeroed before its first
 * use @function: what is called, after the timer was taken off: it may set it again @arg: given to
 * it
 */
struct ddekit_timer {
	void (*function)(void *arg);
	void *arg;
	/* private: */
	uint64_t at;
	bool set;
	struct ddekit_timer *next;
};

/**
 * ddekit_ev_watch() - have a function called while a descriptor is readable
 * @fd: the descriptor; it stays the caller's, who ends the watch before he closes it
 * @function: what is called
 * @arg: given to it
 *
 * Return: the watch, or NULL if the host refuses; errno says why.
 */
struct ddekit_watch *ddekit_ev_watch(int fd, void (*function)(void *arg), void *arg);

/**
 * ddekit_ev_watch_edges() - the same, but called once each time that something is written to the
 * descriptor, which nobody has to read
 */
struct ddekit_watch *ddekit_ev_watch_edges(int fd, void (*function)(void *arg), void *arg);

/**
 * ddekit_ev_unwatch() - end a watch: its function is not called any more, whatever has come
 * @watch: the watch, or NULL
 */
void ddekit_ev_unwatch(struct ddekit_watch *watch);

/**
 * ddekit_ev_timer_set() - have a timer's function called, once
 * @timer: the timer; if it is set, its time changes
 * @at: when, as ddekit_now() counts; a time that has passed is now
 */
void ddekit_ev_timer_set(struct ddekit_timer *timer, uint64_t at);

/**
 * ddekit_ev_timer_cancel() - take a timer off
 * @timer: the timer; one that is not set stays so
 */
void ddekit_ev_timer_cancel(struct ddekit_timer *timer);

/**
 * ddekit_ev_poll() - call what is due; sleep until something is, if nothing is
 * @until: sleep no longer than until this time; 0 does not sleep, UINT64_MAX knows no end
 *
 * Return: how many functions were called, or a negative errno.
 */
int ddekit_ev_poll(uint64_t until);

#endif
