/* check: assertions that stay on.
 *
 * CHECK states what the programmer believes; it is compiled into every build, because going on with
 * a broken invariant could acknowledge work that was not done. It is never used on what a peer
 * sent.
 */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

_Noreturn void check_failed(const char *condition, const char *file, int line);

#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))

/* A branch that an earlier check rules out; says which. */
#define UNREACHABLE(why) check_failed(why, __FILE__, __LINE__)

#endif
